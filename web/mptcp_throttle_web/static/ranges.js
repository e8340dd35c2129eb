// The times that charts show, in seconds, as the server allows them; and after how many seconds they are drawn again.

export const RANGES = [["600", "10 min"], ["3600", "1 h"], ["86400", "24 h"], ["5184000", "60 days"]];
export const DIRECTIONS = [["sent", "to clients"], ["received", "from clients"]];
export const DRAW_SECONDS = { 600: 5, 3600: 30, 86400: 60, 5184000: 600 };
