"""`python -m services.preemption`"""

from libs.service.app import run
from libs.service.starting import read_settings, starting
from services.preemption.app import make_app
from services.preemption.settings import PreemptionSettings

with starting("preemption"):
    settings = read_settings(PreemptionSettings, "preemption")
    app = make_app(settings)
run(app, settings, "preemption", yields=True)
