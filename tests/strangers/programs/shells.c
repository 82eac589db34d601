// asks: do system and popen run what they run bare, and is it traced? (EVT_1, system(3), popen(3))
// probe: -f
// argv: all
#include "stranger.h"

FUNCTION static int work(int n) { return n + 1; }

int main(int argc, char **argv) {
    if (strcmp(argv[1], "executed") == 0) {
        printf("work %d\n", work(argc));
        return 4;
    }
    char command[4096];
    snprintf(command, sizeof command, "%s executed; exit $?", argv[0]);
    printf("system: %x\n", system(command));
    FILE *pipe = popen(command, "r");
    char line[64] = "";
    CHECK(pipe && fgets(line, sizeof line, pipe));
    printf("popen: %s, %x\n", line, pclose(pipe));
    calls(".", "work", 2);
    show_state();
    return 0;
}
