"""Lays a frida-gum Interceptor on a function of another process: interceptor.py PID ADDRESS.

Its handler is native code and counts. Says `ready`, waits for the end of its input, then says how often it was hit.
"""

import sys

import frida

SCRIPT = """
const hits = Memory.alloc(8);
const module = new CModule(`
#include <gum/guminterceptor.h>

extern volatile guint64 hits;

void on_enter (GumInvocationContext * context)
{
  hits++;
}
`, { hits });
Interceptor.attach(ptr('%s'), { onEnter: module.on_enter });
Interceptor.flush();
rpc.exports = { hits() { return hits.readU64().toNumber(); } };
"""

session = frida.attach(int(sys.argv[1]))
script = session.create_script(SCRIPT % sys.argv[2])
script.load()
print("ready", frida.__version__, flush=True)
sys.stdin.read()
print(script.exports_sync.hits(), flush=True)
