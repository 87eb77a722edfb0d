"""`python -m services.history`"""

from libs.service.app import run
from services.history.app import make_app
from services.history.settings import HistorySettings

settings = HistorySettings()
run(make_app(settings), settings, "history", yields=True)
