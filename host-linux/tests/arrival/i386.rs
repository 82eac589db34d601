std::arch::global_asm!(include_str!("i386.s"), options(att_syntax));
