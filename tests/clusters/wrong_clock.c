/* For LD_PRELOAD: the time of day is wrong by WRONG_BY seconds. Waits last as long as ever, also those until a time of day. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { A_TIME_OF_DAY = 1000000000 }; /* other clocks count from the machine's start */

static time_t wrong_by(void) {
    const char *text = getenv("WRONG_BY");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = syscall(SYS_clock_gettime, clock, now);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += wrong_by();
    return status;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec, now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    return now ? (*now = found.tv_sec) : found.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec right = *until;
    if (right.tv_sec > A_TIME_OF_DAY) right.tv_sec -= wrong_by();
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    return real(condition, mutex, &right);
}
