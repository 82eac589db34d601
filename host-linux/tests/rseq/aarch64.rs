std::arch::global_asm!(include_str!("aarch64.s"));
