std::arch::global_asm!(include_str!("x86_64.s"), options(att_syntax));
