"""A report from the ledger: numbers, `report.json`, and one self-contained page with a picture of devices x time.

    story = await collect(baton)                                    # the operator's connection
    numbers, as_json, as_html = write(story, Path("out"), title="Last night")

`facts` folds the ledger, `figures` makes numbers of facts, `picture` geometry, `svg` and `page` strings: all pure.
"""

from libs.report.collect import RunStory, collect, write
from libs.report.document import Report, Step
from libs.report.terminal import summary

__all__ = ["Report", "RunStory", "Step", "collect", "summary", "write"]
