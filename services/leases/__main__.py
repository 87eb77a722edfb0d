"""`python -m services.leases`"""

from libs.service.app import run
from libs.service.starting import read_settings, starting
from services.leases.app import make_app
from services.leases.settings import LeaseSettings

with starting("leases"):
    settings = read_settings(LeaseSettings, "leases")
    app = make_app(settings)
run(app, settings, "leases")
