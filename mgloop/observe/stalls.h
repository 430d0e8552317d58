/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The detection of stalled loops by another thread, at almost no cost for the loops.
 *
 * A loop that is not stalled takes callbacks from its queue and begins iterations, and it counts both
 * anyway. The detector's thread reads the two numbers periodically. If a loop is not waiting and both
 * numbers are unchanged, it has been in one callback all the time.
 *
 * While all loops of a detector are waiting, the detector sleeps as well, without a timeout, so that an
 * idle process uses no CPU time. A loop wakes it at the end of a wait (mgl_wait_ended() in
 * port/threadqueue.h), which costs one load of `asleep` per wait and one system call per sleep of the
 * detector. No wake-up is lost. In the order of sequentially consistent operations,
 *
 *     the detector  D1  asleep = true           the loop   L1  waiting = false
 *                   D2  reads `waiting`                    L2  reads `asleep`
 *
 * if D2 sees that the loop is still waiting, then L1 follows D2, and L2 sees the store of D1.
 *
 * Only observe/_stalls is linked with stalls.c, and so owns the lists of all detectors. A loop refers to
 * its detector through mgl_thread_queue.sleeper and calls nothing of this file. */
#ifndef MGLOOP_STALLS_H
#define MGLOOP_STALLS_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "counters.h"
#include "ring.h"
#include "threadqueue.h"

typedef struct mgl_detector mgl_detector;

/* Returns a new or reused detector, or NULL if memory is exhausted. Times are in nanoseconds. */
mgl_detector *mgl_detector_new(int64_t threshold, int64_t period);

/* Makes the detector available for reuse. It must have no loops. It is never freed, because a loop may be
 * about to wake it. */
void mgl_detector_release(mgl_detector *d);

typedef enum { MGL_ADDED, MGL_HAS_DETECTOR, MGL_TOO_MANY } mgl_add_result;

/* Adds a loop, unless it already has a detector or this one has 256 loops. */
mgl_add_result mgl_detector_add(mgl_detector *d, mgl_thread_queue *queue, const mgl_ring *ready, mgl_counters *count);

/* Removes a loop. Returns the length of its stall in nanoseconds if its end has not been reported,
 * otherwise 0. */
int64_t mgl_detector_remove(mgl_detector *d, mgl_thread_queue *queue);

/* Returns whether the loop has made no progress since the last check. */
bool mgl_detector_is_stalled(mgl_detector *d, mgl_thread_queue *queue);

typedef enum { MGL_STOPPED, MGL_CALLED, MGL_STALLED, MGL_CONTINUES } mgl_stall_event;

/* Blocks until there is a result for the loop *which, or the detector is called or stopped. The caller
 * is detached from the interpreter. *lasted: length of the stall in nanoseconds. */
mgl_stall_event mgl_detector_wait(mgl_detector *d, mgl_thread_queue **which, int64_t *lasted);

/* Returns whether the caller must report the end of the stall. Each end is reported once, either by the
 * detector's thread or by a thread that removes the loop. *stalled_for: length of the stall in nanoseconds. */
bool mgl_detector_take_resumed(mgl_detector *d, mgl_thread_queue *queue, int64_t *stalled_for);

/* Makes mgl_detector_wait() return MGL_CALLED. */
void mgl_detector_call(mgl_detector *d);

/* Makes mgl_detector_wait() return MGL_STOPPED, now and in all later calls. */
void mgl_detector_stop(mgl_detector *d);

#endif
