// asks: is what the constructor of a library calls, when it is loaded and when it goes, counted? (EVT_1,
// dlopen(3))
// library:
#include "stranger.h"

#ifdef LIBRARY
static int early;
__attribute__((constructor)) static void begin(void) {
    for (int i = 0; i < 10; i++) early += getppid() != 0;
}
__attribute__((destructor)) static void end(void) { getppid(); }
int early_calls(void) { return early; }
#else
#include <dlfcn.h>
int main(void) {
    for (int i = 0; i < 5; i++) {
        void *library = dlopen("./dlopen_constructor.so", RTLD_NOW);
        CHECK(library);
        int (*early_calls)(void) = dlsym(library, "early_calls");
        printf("%d\n", early_calls());
        dlclose(library);
    }
    calls("libc.so.6", "getppid", 55);
    return 0;
}
#endif
