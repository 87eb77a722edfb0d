"""`python -m services.placement`"""

import os
import socket
import sys

from libs.service.app import run
from libs.service.files import BadFile
from services.placement.app import make_app
from services.placement.settings import PlacementSettings

settings = PlacementSettings()
try:
    app = make_app(settings, writer_id=f"{socket.gethostname()}-{os.getpid()}")
except BadFile as error:
    sys.exit(f"placement: {error}")
run(app, settings, "placement")
