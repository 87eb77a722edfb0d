"""`python -m services.queries`"""

from libs.service.app import run
from libs.service.starting import read_settings, starting
from services.queries.app import make_app
from services.queries.settings import QueriesSettings

with starting("queries"):
    settings = read_settings(QueriesSettings, "queries")
    app = make_app(settings)
run(app, settings, "queries", yields=True)
