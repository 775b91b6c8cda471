"""What a program and a µGraph are; imports nothing else of this package, no egglog and no GPU library."""
