#pragma once

#include "spec.h"

/* This process, the first of its pid namespace, sees a copy of the prepared view from now on, with its own folders in it.
 * `before`: the mount namespace that it is in. Returns "", or why it still sees what it saw: "changed", when the machine has not
 * what the view shows. */
const char *copy_view(int view, const struct walls *walls, int before);
