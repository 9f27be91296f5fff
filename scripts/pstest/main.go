// Google's own fake of Pub/Sub, as a process. Its first line tells the address. Every line that it reads is answered by the
// number of messages that nobody has acknowledged yet; at the end of its input it ends.
package main

import (
	"bufio"
	"fmt"
	"os"

	"cloud.google.com/go/pubsub/pstest"
)

func main() {
	server := pstest.NewServer()
	fmt.Println(server.Addr)
	questions := bufio.NewScanner(os.Stdin)
	for questions.Scan() {
		unacknowledged := 0
		for _, message := range server.Messages() {
			if message.Acks == 0 {
				unacknowledged++
			}
		}
		fmt.Println(unacknowledged)
	}
}
