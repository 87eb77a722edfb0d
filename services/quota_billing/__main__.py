"""`python -m services.quota_billing`"""

from libs.service.app import run
from libs.service.starting import read_settings, starting
from services.quota_billing.app import make_app
from services.quota_billing.settings import QuotaBillingSettings

with starting("quota_billing"):
    settings = read_settings(QuotaBillingSettings, "quota_billing")
    app = make_app(settings)
run(app, settings, "quota_billing", yields=True)
