/* Preloaded into an interpreter: a signal comes to the main thread in the last moment before a wait with a time limit.
 *
 * CPython has looked for signals then, and has let the GIL go. Nothing interrupts the wait that follows.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

volatile int late_signal; /* sent once, to this process, before the main thread waits the next time */

static void strike(void) {
    int number = late_signal;
    if (number && gettid() == getpid()) {
        late_signal = 0;
        raise(number);
    }
}

int sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until) {
    int (*real)(sem_t *, clockid_t, const struct timespec *);
    *(void **)&real = dlsym(RTLD_NEXT, "sem_clockwait");
    strike();
    return real(sem, clock, until);
}

int sem_timedwait(sem_t *sem, const struct timespec *until) {
    int (*real)(sem_t *, const struct timespec *);
    *(void **)&real = dlsym(RTLD_NEXT, "sem_timedwait");
    strike();
    return real(sem, until);
}

int sem_wait(sem_t *sem) {
    int (*real)(sem_t *);
    *(void **)&real = dlsym(RTLD_NEXT, "sem_wait");
    strike();
    return real(sem);
}
