"""`python -m services.admission`"""

from libs.service.app import run
from services.admission.app import make_app
from services.admission.settings import AdmissionSettings

settings = AdmissionSettings()
run(make_app(settings), settings, "admission")
