"""`python -m services.history`"""

from libs.service.app import run
from libs.service.starting import read_settings, starting
from services.history.app import make_app
from services.history.settings import HistorySettings

with starting("history"):
    settings = read_settings(HistorySettings, "history")
    app = make_app(settings)
run(app, settings, "history", yields=True)
