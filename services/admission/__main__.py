"""`python -m services.admission`"""

from libs.service.app import run
from libs.service.starting import read_settings, starting
from services.admission.app import make_app
from services.admission.settings import AdmissionSettings

with starting("admission"):
    settings = read_settings(AdmissionSettings, "admission")
    app = make_app(settings)
run(app, settings, "admission")
