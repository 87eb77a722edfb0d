/* Messages that carry descriptors. */
#pragma once

#include "kernel.h"

enum { MOST_DESCRIPTORS = 3 };

/* What comes next, and its descriptors: those are closed when a program is executed. Returns its length in bytes; 0 when nobody
 * is there any more. */
long receive(int from, void *message, size_t room, int descriptors[MOST_DESCRIPTORS], int *count);

/* False: nobody hears it any more. */
bool say(int to, const void *message, size_t bytes);
bool say_with(int to, const void *message, size_t bytes, int descriptor);
