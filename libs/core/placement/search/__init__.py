"""Which devices satisfy a request, and which of them lie close enough together."""
