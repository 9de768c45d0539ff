// qstrdefsport.h: names that only this port needs and that no source file shows: none.
