"""What a NATS server would say of a subject and a pattern."""


def matches(pattern: str, subject: str) -> bool:
    """NATS: `*` is one token, a last `>` is one or more."""
    wanted, given_ = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(given_) >= len(wanted) and all(w in ("*", s) for w, s in zip(wanted[:-1], given_, strict=False))
    return len(wanted) == len(given_) and all(w in ("*", s) for w, s in zip(wanted, given_, strict=True))
