"""`python -m services.telemetry`"""

from libs.service.app import run
from services.telemetry.app import make_app
from services.telemetry.settings import TelemetrySettings

settings = TelemetrySettings()
run(make_app(settings), settings, "telemetry", yields=True)
