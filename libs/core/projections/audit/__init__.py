"""The ledger as an auditor reads it: one line for each command and each action of an operator, and the books that these lie in.

    lines = AuditLines(); for each valid record: lines.of(record, seq) -> the lines that it holds
    books = Books of operators, taken together from the ledger and from the files beside `keys.json`

Pure. `libs.ledger.audit` reads, `baton audit` shows.
"""

from libs.core.projections.audit.books import BookProblem, compare, untold
from libs.core.projections.audit.lines import AuditLine, AuditLines

__all__ = ["AuditLine", "AuditLines", "BookProblem", "compare", "untold"]
