std::arch::global_asm!(include_str!("arm.s"));
