/* The shim: a process that holds one attempt. It starts the attempt's processes, keeps their output, and ends last. */
#pragma once

#include "spec.h"

/* Descriptors: `control`, the socket to the keeper; `view`, of one that is prepared, or -1; `large`, a file with the spec, which
 * else is the first message on `control`, or -1. Never returns. */
_Noreturn void hold(const struct setup *setup, int control, int view, int large);

/* The same for one that makes a view (services/agent/keeper/prepared.py): says what the view shows, with its namespace, or ends
 * without a word. */
_Noreturn void make_view(const struct setup *setup, int control, int large);
