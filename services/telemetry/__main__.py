"""`python -m services.telemetry`"""

from libs.service.app import run
from libs.service.starting import read_settings, starting
from services.telemetry.app import make_app
from services.telemetry.settings import TelemetrySettings

with starting("telemetry"):
    settings = read_settings(TelemetrySettings, "telemetry")
    app = make_app(settings)
run(app, settings, "telemetry", yields=True)
