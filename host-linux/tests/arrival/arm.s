.text
.arm
.globl arrival_work
.type arrival_work, %function
arrival_work:
    push {{r4, lr}}
    sub sp, sp, #8
    str r0, [sp]
    cmp r0, #100
    bhi arrival_work.cold
    add r0, r0, #1
    add sp, sp, #8
    pop {{r4, pc}}
.size arrival_work, . - arrival_work

.type arrival_work.cold, %function
arrival_work.cold:
    ldr r0, [sp]
    add r0, r0, #1000
    add sp, sp, #8
    pop {{r4, pc}}
.size arrival_work.cold, . - arrival_work.cold

.type arrival_bare.cold.7, %function
arrival_bare.cold.7:
    bx lr
.size arrival_bare.cold.7, . - arrival_bare.cold.7
