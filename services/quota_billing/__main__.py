"""`python -m services.quota_billing`"""

import sys

from libs.service.app import run
from services.quota_billing.app import make_app
from services.quota_billing.files import BadFile
from services.quota_billing.settings import QuotaBillingSettings

settings = QuotaBillingSettings()
try:
    app = make_app(settings)
except BadFile as error:
    sys.exit(f"quota_billing: {error}")
run(app, settings, "quota_billing", yields=True)
