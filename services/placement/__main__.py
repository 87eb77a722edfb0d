"""`python -m services.placement`"""

import os
import socket

from libs.service.app import run
from libs.service.starting import read_settings, starting
from services.placement.app import make_app
from services.placement.settings import PlacementSettings

with starting("placement"):
    settings = read_settings(PlacementSettings, "placement")
    app = make_app(settings, writer_id=f"{socket.gethostname()}-{os.getpid()}")
run(app, settings, "placement")
