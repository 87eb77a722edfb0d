"""`python -m libs.service.probe`: whether the service of this container is ready, for its health check.

Exits with 0 when it is, or when there is none (BATON_HTTP_PORT is not set: the image runs the command line).
"""

import os
import sys
import urllib.request
from collections.abc import Mapping


def ready(environ: Mapping[str, str]) -> bool:
    """What `/readyz` says to whoever has this environment."""
    port = environ.get("BATON_HTTP_PORT", "")
    if not port:
        return True
    headers = {"Authorization": f"Bearer {environ.get('BATON_HTTP_TOKEN', '')}"}
    question = urllib.request.Request(f"http://127.0.0.1:{port}/readyz", headers=headers)
    try:
        with urllib.request.urlopen(question, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(not ready(os.environ))
