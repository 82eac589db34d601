// asks: can a program that writes rubbish into every shared mapping of the tracer's crash it, hang it, or be
// crashed? (EVT_2)
// probe: -f
// counts: no
// short
#include "stranger.h"

FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    unsigned long from[64], to[64];
    int count = 0, kept = dup(1);
    while (fgets(line, sizeof line, maps))
        if (count < 64 && strstr(line, "rw-s") && sscanf(line, "%lx-%lx", &from[count], &to[count]) == 2) count++;
    fclose(maps);
    unsigned seed = 1;
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < count; i++)
            for (int j = 0; j < 2000; j++) {
                seed = seed * 1103515245u + 12345u;
                volatile unsigned *word = (unsigned *)from[i] + (seed >> 4) % (j < 1000 ? 2048 : (to[i] - from[i]) / 4);
                *word = j % 3 == 0 ? seed : j % 3 == 1 ? ~0u : 0x7ffffff9u;
            }
        work(round);
        getppid();
    }
    dprintf(kept, "alive\n");
    return 12;
}
