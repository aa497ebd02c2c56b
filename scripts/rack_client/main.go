// Consumers in Go with a rack: `rack-client franz-go|sarama SERVERS TOPIC RACK COUNT` reads COUNT records of partition 0
// from its beginning, in fetches of at most 50,000 bytes, and prints their keys, one a line. Built by scripts/tools.py.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

const fetchBytes = 50_000

func franzGo(ctx context.Context, servers []string, topic, rack string, print func(key []byte) bool) {
	first := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(servers...),
		kgo.ConsumePartitions(first),
		kgo.Rack(rack),
		kgo.FetchMaxPartitionBytes(fetchBytes),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			log.Fatal(err)
		}
		for _, record := range fetches.Records() {
			if !print(record.Key) {
				return
			}
		}
	}
}

func readSarama(ctx context.Context, servers []string, topic, rack string, print func(key []byte) bool) {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.RackID = rack
	config.Consumer.Fetch.Default = fetchBytes
	config.Consumer.Return.Errors = true
	consumer, err := sarama.NewConsumer(servers, config)
	if err != nil {
		log.Fatal(err)
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		log.Fatal(err)
	}
	defer partition.Close()
	for {
		select {
		case message := <-partition.Messages():
			if !print(message.Key) {
				return
			}
		case err := <-partition.Errors():
			log.Fatal(err)
		case <-ctx.Done():
			log.Fatal(ctx.Err())
		}
	}
}

func main() {
	if len(os.Args) != 6 {
		log.Fatal("usage: rack-client franz-go|sarama SERVERS TOPIC RACK COUNT")
	}
	read := map[string]func(context.Context, []string, string, string, func([]byte) bool){
		"franz-go": franzGo,
		"sarama":   readSarama,
	}[os.Args[1]]
	left, err := strconv.Atoi(os.Args[5])
	if read == nil || err != nil || left < 1 {
		log.Fatalf("no client %s, or no number %s", os.Args[1], os.Args[5])
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	read(ctx, strings.Split(os.Args[2], ","), os.Args[3], os.Args[4], func(key []byte) bool {
		fmt.Fprintf(out, "%s\n", key)
		left--
		return left > 0
	})
}
