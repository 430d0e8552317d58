/* SPDX-License-Identifier: GPL-2.0-only
 *
 * System calls and allocations that fail on demand: preloaded by test_faults.py.
 *
 * A plan determines which calls of one function fail, and how. It counts calls from its creation.
 * It can be limited to one descriptor; for allocations it applies only to the thread that made it.
 * All other calls go to the C library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

typedef struct {
    const char *name;
    int error;  /* 0 = no plan */
    int fd;     /* -1 = any */
    long skip;  /* calls that succeed first */
    long times; /* calls that fail, -1 = without end */
    long every; /* of those that come, 1 = each */
    long seen;
    long failed;
    pthread_t thread;
} plan;

static plan plans[] = {
    {.name = "accept4"},     {.name = "calloc"},   {.name = "epoll_create1"},
    {.name = "epoll_ctl"},   {.name = "epoll_wait"}, {.name = "malloc"},
    {.name = "realloc"},     {.name = "recv"},     {.name = "recvmmsg"},
    {.name = "send"},        {.name = "sendmsg"},  {.name = "socketpair"},
    {.name = "timerfd_create"}, {.name = "timerfd_settime"}, {.name = "recvfrom"},
    {.name = "sendto"},      {.name = "recvmsg"},
};
enum { ACCEPT4, CALLOC, EPOLL_CREATE1, EPOLL_CTL, EPOLL_WAIT, MALLOC, REALLOC, RECV, RECVMMSG, SEND,
       SENDMSG, SOCKETPAIR, TIMERFD_CREATE, TIMERFD_SETTIME, RECVFROM, SENDTO,
       RECVMSG, CALLS };

static plan *find(const char *name) {
    for (int i = 0; i < CALLS; i++)
        if (strcmp(plans[i].name, name) == 0) return &plans[i];
    abort();
}

void faulty_plan(const char *name, int error, int fd, long skip, long times, long every) {
    plan *p = find(name);
    *p = (plan) {p->name, error, fd, skip, times, every, 0, 0, pthread_self()};
}

long faulty_seen(const char *name) { return find(name)->seen; }

long faulty_failed(const char *name) { return find(name)->failed; }

static bool fails(int which, int fd) {
    plan *p = &plans[which];
    if (p->fd >= 0 && p->fd != fd) return false;
    long number = p->seen++;
    if (p->error == 0 || number < p->skip || p->failed == p->times) return false;
    if ((number - p->skip) % p->every != p->every - 1) return false;
    p->failed++;
    errno = p->error;
    return true;
}

static bool fails_here(int which) {
    if (plans[which].error == 0 || !pthread_equal(plans[which].thread, pthread_self())) return false;
    return fails(which, -1);
}

/* Allocations are needed before dlsym() works; glibc also exports them under other names. */
void *__libc_calloc(size_t n, size_t size);
void *__libc_malloc(size_t size);
void *__libc_realloc(void *old, size_t size);

void *calloc(size_t n, size_t size) { return fails_here(CALLOC) ? NULL : __libc_calloc(n, size); }

void *malloc(size_t size) { return fails_here(MALLOC) ? NULL : __libc_malloc(size); }

void *realloc(void *old, size_t size) {
    return fails_here(REALLOC) ? NULL : __libc_realloc(old, size);
}

#define REPLACE(which, result, name, fd, parameters, arguments)                \
    result name parameters {                                                   \
        static result (*real) parameters;                                      \
        if (real == NULL) real = (result (*) parameters) dlsym(RTLD_NEXT, #name); \
        return fails(which, fd) ? -1 : real arguments;                         \
    }

REPLACE(ACCEPT4, int, accept4, fd, (int fd, struct sockaddr *a, socklen_t *n, int flags),
        (fd, a, n, flags))
REPLACE(EPOLL_CREATE1, int, epoll_create1, -1, (int flags), (flags))
/* `fd` is the descriptor that is added or changed. */
REPLACE(EPOLL_CTL, int, epoll_ctl, fd, (int epfd, int op, int fd, struct epoll_event *e),
        (epfd, op, fd, e))
REPLACE(EPOLL_WAIT, int, epoll_wait, -1, (int fd, struct epoll_event *e, int n, int ms),
        (fd, e, n, ms))
REPLACE(RECV, ssize_t, recv, fd, (int fd, void *p, size_t n, int flags), (fd, p, n, flags))
REPLACE(RECVFROM, ssize_t, recvfrom, fd,
        (int fd, void *p, size_t n, int flags, struct sockaddr *a, socklen_t *an),
        (fd, p, n, flags, a, an))
REPLACE(RECVMMSG, int, recvmmsg, fd,
        (int fd, struct mmsghdr *m, unsigned n, int flags, struct timespec *t), (fd, m, n, flags, t))
REPLACE(RECVMSG, ssize_t, recvmsg, fd, (int fd, struct msghdr *m, int flags), (fd, m, flags))
REPLACE(SEND, ssize_t, send, fd, (int fd, const void *p, size_t n, int flags), (fd, p, n, flags))
REPLACE(SENDTO, ssize_t, sendto, fd,
        (int fd, const void *p, size_t n, int flags, const struct sockaddr *a, socklen_t an),
        (fd, p, n, flags, a, an))
REPLACE(SENDMSG, ssize_t, sendmsg, fd, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
REPLACE(SOCKETPAIR, int, socketpair, -1, (int family, int kind, int protocol, int pair[2]),
        (family, kind, protocol, pair))
REPLACE(TIMERFD_CREATE, int, timerfd_create, -1, (int clock, int flags), (clock, flags))
REPLACE(TIMERFD_SETTIME, int, timerfd_settime, -1,
        (int fd, int flags, const struct itimerspec *at, struct itimerspec *old),
        (fd, flags, at, old))
