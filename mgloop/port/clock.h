/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef MGLOOP_CLOCK_H
#define MGLOOP_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Returns CLOCK_MONOTONIC in nanoseconds, which is the clock of time.monotonic(). */
static inline int64_t mgl_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

#endif
