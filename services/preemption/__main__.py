"""`python -m services.preemption`"""

from libs.service.app import run
from services.preemption.app import make_app
from services.preemption.settings import PreemptionSettings

settings = PreemptionSettings()
run(make_app(settings), settings, "preemption", yields=True)
