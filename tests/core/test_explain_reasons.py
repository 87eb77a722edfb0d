"""The contract of `explain` names every reason that it gives, and no other."""

import re

from libs.core.explain.waiting import BACKING_OFF, CUTS_USED_UP
from libs.core.placement.answer import BlockReason
from schemas.explanations import Explanation


def test_every_reason_is_in_the_contract() -> None:
    told = Explanation.model_fields["reason"].description
    assert told is not None
    listed = re.search(r"\(([^)]*)\)", told)
    assert listed is not None
    assert set(listed.group(1).split(", ")) == {reason.value for reason in BlockReason}
    assert "preempting" in told
    assert "next" in told
    assert BACKING_OFF in told
    assert CUTS_USED_UP in told
