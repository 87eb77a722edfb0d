"""`python -m services.vault`"""

import sys

from libs.service.app import run
from services.vault.app import make_app
from services.vault.keys import BadKeys
from services.vault.settings import VaultSettings

settings = VaultSettings()
try:
    app = make_app(settings)
except BadKeys as error:
    sys.exit(f"vault: {error}")
run(app, settings, "vault", yields=True)
