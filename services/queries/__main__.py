"""`python -m services.queries`"""

import sys

from libs.service.app import run
from libs.service.files import BadFile
from services.queries.app import make_app
from services.queries.settings import QueriesSettings

settings = QueriesSettings()
try:
    app = make_app(settings)
except BadFile as error:
    sys.exit(f"queries: {error}")
run(app, settings, "queries", yields=True)
