# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_probe_global_optspecs
    string join \n h/help V/version
end

function __fish_probe_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_probe_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_probe_using_subcommand
    set -l cmd (__fish_probe_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c probe -n "__fish_probe_needs_command" -s h -l help -d 'Print help'
complete -c probe -n "__fish_probe_needs_command" -s V -l version -d 'Print version'
complete -c probe -n "__fish_probe_needs_command" -f -a "trace" -d 'Start a program with probes in it and print what they see'
complete -c probe -n "__fish_probe_needs_command" -f -a "record" -d 'Start a program with probes in it and keep what they see in a file, to be looked at later'
complete -c probe -n "__fish_probe_needs_command" -f -a "print" -d 'Print what is in a file of `probe record`, as `probe trace` would have'
complete -c probe -n "__fish_probe_needs_command" -f -a "report" -d 'Show a file of `probe record` by function: calls, time in all and in the function itself'
complete -c probe -n "__fish_probe_needs_command" -f -a "graph" -d 'Show the calls in a file of `probe record` as a tree: who called whom, and how long that took'
complete -c probe -n "__fish_probe_needs_command" -f -a "export" -d 'Write a file of `probe record` for other programs: flame graphs, Perfetto, Firefox Profiler, Chrome'
complete -c probe -n "__fish_probe_needs_command" -f -a "list" -d 'Show what can be probed in a program and the libraries it loads'
complete -c probe -n "__fish_probe_needs_command" -f -a "explain" -d 'Say how a place would be probed, or why not, instruction by instruction'
complete -c probe -n "__fish_probe_needs_command" -f -a "install-docs" -d 'Write the manual pages and shell completions of this command below a folder'
complete -c probe -n "__fish_probe_using_subcommand trace" -s p -l probe -d 'A probe definition; may be given many times' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l from -d 'Where a time between two places begins, in the same thread, and where it ends: at --to' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l to -d 'Where it ends; see --from' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l if -d 'Only hits for which this holds, such as \'size >= 1M && $took > 20us\'' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l hist -d 'Count the sizes of this number, such as \'$took\' or size, instead of showing each hit' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l stack -d 'Show with each hit who has called: the stack, up to this many frames [default: 64; at most 128]' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l by -d 'Count hits by this: a number, a text such as a path or \'$comm\', or \'$caller\'; or by two of them' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l count-by -d 'The same as --by; comm is the thread\'s name, stack who has called' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l sum -d 'Add up this number; with --by for each key' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l top -d 'How many keys of --by are shown, those with the most first [default: 20; in JSON all]' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l every -d 'Show what has been counted since the last time, each time this much time has passed (such as 1s)' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -s o -l output -d 'Write events and summary there instead of to standard error; `-` is standard output' -r -F
complete -c probe -n "__fish_probe_using_subcommand trace" -l format -d 'How events and summary are written (json: one object per line)' -r -f -a "text\t'A line per event, a table at the end'
json\t'A JSON object per line'"
complete -c probe -n "__fish_probe_using_subcommand trace" -l pid -d 'Trace the process of this number, or all of this name, which run already, and start no program' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l duration -d 'End the program with SIGTERM, or the trace of --pid, after this time (such as 10, 1.5s, 200ms, 2m)' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l buffer -d 'Buffer per thread (such as 512K, 16M); see --on-full' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l on-full -d 'What a thread does whose buffer is full' -r -f -a "drop\t'Drops the event and counts it: tracing never stops a program, as in the kernel\'s tracers'
wait\t'Waits until there is room'"
complete -c probe -n "__fish_probe_using_subcommand trace" -l runner -d 'Start the program, and what it executes, through this command: an emulator that takes QEMU\'s options -0 and -E [default: what the variable PROBE_RUNNER holds]' -r
complete -c probe -n "__fish_probe_using_subcommand trace" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c probe -n "__fish_probe_using_subcommand trace" -s f -l follow -d 'Follow forked children, too, and the programs that they execute'
complete -c probe -n "__fish_probe_using_subcommand trace" -l no-events -d 'Count and time only, without an event per hit'
complete -c probe -n "__fish_probe_using_subcommand trace" -l no-jumps -d 'Plant breakpoints only, which trap, where a jump to the probe would do'
complete -c probe -n "__fish_probe_using_subcommand trace" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c probe -n "__fish_probe_using_subcommand record" -s p -l probe -d 'A probe definition; may be given many times' -r
complete -c probe -n "__fish_probe_using_subcommand record" -l from -d 'Where a time between two places begins, in the same thread, and where it ends: at --to' -r
complete -c probe -n "__fish_probe_using_subcommand record" -l to -d 'Where it ends; see --from' -r
complete -c probe -n "__fish_probe_using_subcommand record" -l if -d 'Only hits for which this holds, as for probe trace' -r
complete -c probe -n "__fish_probe_using_subcommand record" -l stack -d 'Keep with each hit who has called: the stack, up to this many frames [default: 64; at most 128]' -r
complete -c probe -n "__fish_probe_using_subcommand record" -s o -l output -d 'The file; what was in it is replaced' -r -F
complete -c probe -n "__fish_probe_using_subcommand record" -l pid -d 'Record the process of this number, or all of this name, which run already, and start no program' -r
complete -c probe -n "__fish_probe_using_subcommand record" -l duration -d 'End the program with SIGTERM, or the record of --pid, after this time (such as 10, 1.5s, 200ms, 2m)' -r
complete -c probe -n "__fish_probe_using_subcommand record" -l buffer -d 'Buffer per thread (such as 512K, 16M); see --on-full' -r
complete -c probe -n "__fish_probe_using_subcommand record" -l on-full -l full -d 'What a thread does whose buffer is full: it waits, and nothing is lost, or drops the event and counts' -r -f -a "drop\t'Drops the event and counts it: tracing never stops a program, as in the kernel\'s tracers'
wait\t'Waits until there is room'"
complete -c probe -n "__fish_probe_using_subcommand record" -l runner -d 'Start the program, and what it executes, through this command: an emulator, as for probe trace' -r
complete -c probe -n "__fish_probe_using_subcommand record" -s f -l follow -d 'Follow forked children, too, and the programs that they execute'
complete -c probe -n "__fish_probe_using_subcommand record" -l no-jumps -d 'Plant breakpoints only, which trap, where a jump to the probe would do'
complete -c probe -n "__fish_probe_using_subcommand record" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c probe -n "__fish_probe_using_subcommand print" -l since -d 'Only events from this time on, since the recording began (such as 1.5s, 200ms, 10us)' -r
complete -c probe -n "__fish_probe_using_subcommand print" -l task -d 'Only events of this thread or process: its number, or a pattern for its name (such as \'cc1*\')' -r
complete -c probe -n "__fish_probe_using_subcommand print" -l event -d 'Only events whose name matches this pattern (such as \'open*\')' -r
complete -c probe -n "__fish_probe_using_subcommand print" -s o -l output -d 'Write there instead of to standard output' -r -F
complete -c probe -n "__fish_probe_using_subcommand print" -l format -d 'How events and summary are written (json: one object per line)' -r -f -a "text\t'A line per event, a table at the end'
json\t'A JSON object per line'"
complete -c probe -n "__fish_probe_using_subcommand print" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c probe -n "__fish_probe_using_subcommand print" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c probe -n "__fish_probe_using_subcommand report" -l since -d 'Only events from this time on, since the recording began (such as 1.5s, 200ms, 10us)' -r
complete -c probe -n "__fish_probe_using_subcommand report" -l task -d 'Only events of this thread or process: its number, or a pattern for its name (such as \'cc1*\')' -r
complete -c probe -n "__fish_probe_using_subcommand report" -l event -d 'Only events whose name matches this pattern (such as \'open*\')' -r
complete -c probe -n "__fish_probe_using_subcommand report" -l by -d 'A row for each function and: caller, task, or an argument of this name' -r
complete -c probe -n "__fish_probe_using_subcommand report" -l sort -d 'What comes first: the most of this' -r -f -a "total\t'Time in the function and all that it calls'
self\t'Time in the function itself'
calls\t'How often it was called'
min\t'The shortest call'
median\t'The median of its calls'
p99\t'The 99th percentile of its calls'
max\t'The longest call'
name\t'The name, the first of the alphabet first'"
complete -c probe -n "__fish_probe_using_subcommand report" -l top -d 'How many rows are shown [default: all]' -r
complete -c probe -n "__fish_probe_using_subcommand report" -l diff -d 'Show what is different from this earlier record, the greatest difference first' -r -F
complete -c probe -n "__fish_probe_using_subcommand report" -l html -d 'Write a page for a browser into this file: functions, histograms, a flame graph, a time line' -r -F
complete -c probe -n "__fish_probe_using_subcommand report" -l format -d 'How it is written (json: one object)' -r -f -a "text\t'A line per event, a table at the end'
json\t'A JSON object per line'"
complete -c probe -n "__fish_probe_using_subcommand report" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c probe -n "__fish_probe_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c probe -n "__fish_probe_using_subcommand graph" -l since -d 'Only events from this time on, since the recording began (such as 1.5s, 200ms, 10us)' -r
complete -c probe -n "__fish_probe_using_subcommand graph" -l task -d 'Only events of this thread or process: its number, or a pattern for its name (such as \'cc1*\')' -r
complete -c probe -n "__fish_probe_using_subcommand graph" -l event -d 'Only events whose name matches this pattern (such as \'open*\')' -r
complete -c probe -n "__fish_probe_using_subcommand graph" -l depth -d 'How many calls inside of each other are shown [default: all]' -r
complete -c probe -n "__fish_probe_using_subcommand graph" -l time -d 'Only calls that took at least this long (such as 10us)' -r
complete -c probe -n "__fish_probe_using_subcommand graph" -l only -d 'Only calls of functions whose name matches this pattern, and what they have called' -r
complete -c probe -n "__fish_probe_using_subcommand graph" -l without -d 'Without the calls of functions whose name matches this pattern, and what they have called' -r
complete -c probe -n "__fish_probe_using_subcommand graph" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c probe -n "__fish_probe_using_subcommand graph" -l aggregate -d 'Put together what went the same way, with total and own time, the longest first'
complete -c probe -n "__fish_probe_using_subcommand graph" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c probe -n "__fish_probe_using_subcommand export" -l since -d 'Only events from this time on, since the recording began (such as 1.5s, 200ms, 10us)' -r
complete -c probe -n "__fish_probe_using_subcommand export" -l task -d 'Only events of this thread or process: its number, or a pattern for its name (such as \'cc1*\')' -r
complete -c probe -n "__fish_probe_using_subcommand export" -l event -d 'Only events whose name matches this pattern (such as \'open*\')' -r
complete -c probe -n "__fish_probe_using_subcommand export" -l format -d 'The format' -r -f -a "folded\t'A line for each way to a function: by recorded stacks, where there are any, how many hits went it (--weight); else by calls inside of calls, and its own nanoseconds. For flamegraph.pl, inferno, speedscope'
svg\t'A flame graph, to look at in a browser'
perfetto\t'Perfetto\'s own, for ui.perfetto.dev and trace_processor: protocol buffers'
firefox\t'JSON for the Firefox Profiler (profiler.firefox.com, samply load)'
chrome\t'JSON for Chrome\'s chrome://tracing, Perfetto and speedscope'"
complete -c probe -n "__fish_probe_using_subcommand export" -l weight -d 'What makes a way of recorded stacks wider: each hit by one, its duration, or an argument (such as size)' -r
complete -c probe -n "__fish_probe_using_subcommand export" -s o -l output -d 'Write there instead of to standard output' -r -F
complete -c probe -n "__fish_probe_using_subcommand export" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c probe -n "__fish_probe_using_subcommand list" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c probe -n "__fish_probe_using_subcommand list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c probe -n "__fish_probe_using_subcommand explain" -l all -d 'Statistics over all instructions of all functions of OBJECT, by method and by reason' -r
complete -c probe -n "__fish_probe_using_subcommand explain" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c probe -n "__fish_probe_using_subcommand explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c probe -n "__fish_probe_using_subcommand install-docs" -s h -l help -d 'Print help'
