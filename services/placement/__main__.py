"""`python -m services.placement`"""

import os
import socket

from libs.service.app import run
from services.placement.app import make_app
from services.placement.settings import PlacementSettings

settings = PlacementSettings()
run(make_app(settings, writer_id=f"{socket.gethostname()}-{os.getpid()}"), settings, "placement")
