// qstrdefsport.h: names of this port that no source file shows: none.
