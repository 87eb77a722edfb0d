"""`python -m services.vault`"""

from libs.service.app import run
from libs.service.starting import read_settings, starting
from services.vault.app import make_app
from services.vault.keys import BadKeys
from services.vault.settings import VaultSettings

with starting("vault", BadKeys):
    settings = read_settings(VaultSettings, "vault")
    app = make_app(settings)
run(app, settings, "vault", yields=True)
