/** A promise that others settle, and whether it is settled. */
export class Deferred<T> {
  resolve!: (value: T) => void;
  reject!: (error: unknown) => void;
  settled = false;
  readonly promise = new Promise<T>((resolve, reject) => Object.assign(this, { resolve, reject }));
  constructor() {
    const settle = () => (this.settled = true);
    this.promise.then(settle, settle); // an error without a waiter is no unhandled rejection
  }
}
