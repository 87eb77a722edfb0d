"""`python -m services.leases`"""

from libs.service.app import run
from services.leases.app import make_app
from services.leases.settings import LeaseSettings

settings = LeaseSettings()
run(make_app(settings), settings, "leases")
