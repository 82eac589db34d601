// asks: does Java's debugger see of its program what it sees bare? (docs/debuggers.md)
// events: no
#include "stranger.h"

// class H {
//     static int work(int n) { return n * 3 + 1; }
//     public static void main(String[] words) {
//         int sum = 0;
//         for (int i = 0; i < 5; i++) sum += work(i);
//         System.out.println("sum " + String.valueOf(sum));
//     }
// }
// compiled (`javac -XDstringConcat=inline -g --release 8`).
static const char CLASS[] =
    "\312\376\272\276\0\0\0004\0<\12\0\2\0\3\7\0\4\14\0\5\0\6\1\0\20java/lang/Object\1\0\6<init>\1\0\3()V\12\0\10\0\11\7\0\12\14\0\13\0"
    "\14\1\0\1H\1\0\4work\1\0\4(I)I\11\0\16\0\17\7\0\20\14\0\21\0\22\1\0\20java/lang/System\1\0\3out\1\0\25Ljava/io/PrintStream;\7\0\24"
    "\1\0\27java/lang/StringBuilder\12\0\23\0\3\10\0\27\1\0\4sum \12\0\23\0\31\14\0\32\0\33\1\0\6append\1\0-(Ljava/lang/String;)Ljava/l"
    "ang/StringBuilder;\12\0\35\0\36\7\0\37\14\0 \0!\1\0\20java/lang/String\1\0\7valueOf\1\0\25(I)Ljava/lang/String;\12\0\23\0#\14\0$\0"
    "%\1\0\10toString\1\0\24()Ljava/lang/String;\12\0'\0(\7\0)\14\0*\0+\1\0\23java/io/PrintStream\1\0\7println\1\0\25(Ljava/lang/String"
    ";)V\1\0\4Code\1\0\17LineNumberTable\1\0\22LocalVariableTable\1\0\4this\1\0\3LH;\1\0\1n\1\0\1I\1\0\4main\1\0\26([Ljava/lang/String;"
    ")V\1\0\1i\1\0\5words\1\0\23[Ljava/lang/String;\1\0\3sum\1\0\15StackMapTable\1\0\12SourceFile\1\0\6H.java\0 \0\10\0\2\0\0\0\0\0\3\0"
    "\0\0\5\0\6\0\1\0,\0\0\0/\0\1\0\1\0\0\0\5*\267\0\1\261\0\0\0\2\0-\0\0\0\6\0\1\0\0\0\1\0.\0\0\0\14\0\1\0\0\0\5\0/\0000\0\0\0\10\0\13"
    "\0\14\0\1\0,\0\0\0000\0\2\0\1\0\0\0\6\32\6h\4`\254\0\0\0\2\0-\0\0\0\6\0\1\0\0\0\2\0.\0\0\0\14\0\1\0\0\0\6\0001\0002\0\0\0\11\0003"
    "\0004\0\1\0,\0\0\0\215\0\3\0\3\0\0\0003\3<\3=\34\10\242\0\20\33\34\270\0\7`<\204\2\1\247\377\361\262\0\15\273\0\23Y\267\0\25\22\26"
    "\266\0\30\33\270\0\34\266\0\30\266\0\"\266\0&\261\0\0\0\3\0-\0\0\0\22\0\4\0\0\0\4\0\2\0\5\0\26\0\6\0002\0\7\0.\0\0\0 \0\3\0\4\0\22"
    "\0005\0002\0\2\0\0\0003\0006\0007\0\0\0\2\0001\08\0002\0\1\09\0\0\0\12\0\2\375\0\4\1\1\372\0\21\0\1\0:\0\0\0\2\0;";

static char said[1 << 16];
static size_t length, read_on;

// Types a line, and reads until jdb says `wanted`, or, for NULL, no more.
static void type(int to, int from, const char *line, const char *wanted) {
    CHECK(write(to, line, strlen(line)) == (ssize_t)strlen(line));
    for (;;) {
        char *found = wanted ? strstr(said + read_on, wanted) : NULL;
        if (found) {
            read_on = (size_t)(found - said) + strlen(wanted);
            return;
        }
        ssize_t more = read(from, said + length, sizeof said - 1 - length);
        CHECK(more >= 0 && (more > 0 || !wanted));
        if (more == 0) return;
        length += (size_t)more;
    }
}

int main(void) {
    if (access("/usr/bin/jdb", X_OK) != 0) SKIP("jdb is not installed");
    int file = open("H.class", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(file >= 0 && write(file, CLASS, sizeof CLASS - 1) == sizeof CLASS - 1);
    close(file);
    int to[2], from[2];
    CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        dup2(from[1], 2);
        execlp("jdb", "jdb", "-classpath", ".", "H", NULL);
        _exit(97);
    }
    close(to[0]);
    close(from[1]);
    type(to[1], from[0], "stop in H.work\n", "Deferring breakpoint H.work.");
    type(to[1], from[0], "run\n", "main[1] ");
    type(to[1], from[0], "print n\n", "main[1] ");
    type(to[1], from[0], "cont\n", "main[1] ");
    type(to[1], from[0], "where\n", "main[1] ");
    type(to[1], from[0], "set n = 100\n", "main[1] ");
    type(to[1], from[0], "step up\n", "main[1] ");
    type(to[1], from[0], "clear H.work\n", "main[1] ");
    type(to[1], from[0], "cont\n", NULL);
    const char *const wanted[] = {"Breakpoint hit", " n = ", "[1] H.work", "[2] H.main", "Step completed", "Removed", "sum ", "exited", NULL};
    for (char *line = strtok(said, "\n"); line; line = strtok(NULL, "\n"))
        for (const char *const *one = wanted; *one; one++) {
            char *found = strstr(line, *one);
            if (found) printf("%s\n", found);
            if (found) break;
        }
    show_child("jdb", pid);
    return 0;
}
