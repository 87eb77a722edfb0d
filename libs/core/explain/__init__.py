"""Why a job waits, what would help, and what would become of a job that is not submitted yet."""
