/** How a report is named, in outputs and as a file. The Python side has the same two in nbcompile/report.py. */
export const MIME_TYPE = 'application/vnd.nbcompile.v1+json';
export const FILE_ENDING = '.nbcompile.json';
